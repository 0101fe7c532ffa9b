/* Browsers start no workers for pages opened from a disk (file://), and the search runs in one: run it in a frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.onload = () => this.start(frame.contentWindow, String(url))
      this.waiting = []
      document.body.appendChild(frame)
    }

    start(inside, url) {
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = url
      script.onload = () => {
        this.inside = inside
        this.waiting.splice(0).forEach(data => this.postMessage(data))
      }
      inside.document.body.appendChild(script)
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }))
      else this.waiting.push(data)
    }

    terminate() {}
  }
}
