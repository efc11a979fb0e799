"""Watch one forward pass, and note which indices of parameters it ties together."""
