"""One optimizer step of any loop: what it is computed from, measured, held back where it is not finite, examined, made up."""
