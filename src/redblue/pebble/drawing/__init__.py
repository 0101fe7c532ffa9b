"""Drawings of a game: an HTML page that plays it, and a strip of pictures for papers."""
