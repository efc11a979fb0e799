"""Files of pruned language models for servers, in which every layer may differ from the next."""
