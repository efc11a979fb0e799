"""Language models: prompt-routed depth."""
