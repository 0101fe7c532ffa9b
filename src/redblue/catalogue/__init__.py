"""Data on hardware and models: memories of machines, this machine's roofline, attention shapes of models."""
