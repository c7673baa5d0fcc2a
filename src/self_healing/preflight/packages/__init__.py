"""The packages of a script: what its header lists, what it imports and needs besides, and which versions go together."""
