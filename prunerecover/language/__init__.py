"""Questions with choices, and scores of language models on them."""
