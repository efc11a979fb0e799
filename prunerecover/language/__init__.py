"""Questions with choices, and what a language model makes of them."""
