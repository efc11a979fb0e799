"""DataModules over images and annotations."""
