"""Foundations that know nothing of attention: errors, number types, integers, files, parallel runs, text, figures."""
