"""Head sizes: places of the dimensions of heads, and trials of attentions with fewer dimensions."""
