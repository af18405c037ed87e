"""Records and what is declared about them: schemas, frames, persons, sources."""
