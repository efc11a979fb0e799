"""DataModules over images, annotations and text."""
