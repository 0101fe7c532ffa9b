"""Find where the schedules for small caches win on GPUs: words, bytes and times over the head dimension."""
