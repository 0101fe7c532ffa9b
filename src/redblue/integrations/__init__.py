"""Other libraries made to use redblue, on request."""
