"""The grid: shapes of models by number types and directions."""

from __future__ import annotations

from benchmarks.cpu.calls import SHORT, Call

# name: heads of all sequences, n_q, n_k, d, causal
SHAPES = {
    "Swin-T stage 1, 64 windows": (192, 49, 49, 32, False),
    "ViT-B/16, b 8": (96, 197, 197, 64, False),
    "ViT-B/16, b 1": (12, 197, 197, 64, False),
    "CLIP ViT-L/14, b 4": (64, 257, 257, 64, False),
    "DINOv2 ViT-L, b 1": (16, 1370, 1370, 64, False),
    "SAM ViT-B window, 25 windows": (300, 196, 196, 64, False),
    "SAM ViT-B global": (12, 4096, 4096, 64, False),
    "BERT, b 8, n 128": (96, 128, 128, 64, False),
    "BERT, b 1, n 128": (12, 128, 128, 64, False),
    "BERT, b 1, n 512": (12, 512, 512, 64, False),
    "MiniLM, b 32, n 32": (384, 32, 32, 32, False),
    "MiniLM, b 32, n 16": (384, 16, 16, 32, False),
    "CLIP text, b 8": (64, 77, 77, 64, True),
    "T5 encoder, n 512": (12, 512, 512, 64, False),
    "Whisper tiny, encoder": (6, 1500, 1500, 64, False),
    "Whisper large, encoder": (20, 1500, 1500, 64, False),
    "Whisper large, cross, decode": (20, 1, 1500, 64, False),
    "wav2vec 2.0, 10 s": (12, 499, 499, 64, False),
    "SD 1.5, n 4096": (8, 4096, 4096, 40, False),
    "SD 1.5, n 1024": (8, 1024, 1024, 80, False),
    "SD 1.5, n 256": (8, 256, 256, 160, False),
    "SD 1.5, cross": (8, 4096, 77, 40, False),
    "SDXL, n 1024, b 2": (40, 1024, 1024, 64, False),
    "SDXL, n 4096": (10, 4096, 4096, 64, False),
    "SDXL, cross": (10, 4096, 77, 64, False),
    "Flux, 4 of 24 heads, n 4608": (4, 4608, 4608, 128, False),
    "GPT-2, n 1024": (12, 1024, 1024, 64, True),
    "Llama 3 8B, prefill 512": (32, 512, 512, 128, True),
    "Llama 3 8B, prefill 2048": (32, 2048, 2048, 128, True),
    "Phi-3, prefill 512": (32, 512, 512, 96, True),
    "Gemma 7B, prefill 512": (16, 512, 512, 256, True),
    "Llama 3 8B, chunk 128 of 2048": (32, 128, 2048, 128, False),
    "Llama 3 8B, 5 drafts, n 4096": (32, 5, 4096, 128, False),
    "Llama 3 8B, decode, n 1024": (32, 1, 1024, 128, False),
    "Llama 3 8B, decode, n 4096": (32, 1, 4096, 128, False),
    "Gemma 7B, decode, n 4096": (16, 1, 4096, 256, False),
    "Perceiver, 512 of 2048": (8, 512, 2048, 32, False),
    "AlphaFold row, 128 x 128": (512, 128, 128, 32, False),
    "graph transformer, n 1000": (8, 1000, 1000, 16, False),
    "decision transformer, b 64": (64, 60, 60, 128, True),
}
COLUMNS = [(dtype, direction) for direction in ("forward", "training") for dtype in SHORT]


def called(shape: str, dtype: str, direction: str) -> Call:
    heads, n_q, n_k, d, causal = SHAPES[shape]
    return Call(d, dtype, direction, n_q, n_k, heads, causal)
