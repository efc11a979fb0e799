"""Command that redraws all pictures of the documents: `python -m benchmarks.project.pictures`."""

from benchmarks.project.pictures import FOLDER, PICTURES

for name, draw in PICTURES.items():
    (FOLDER / f"{name}.svg").write_text(draw().svg())
