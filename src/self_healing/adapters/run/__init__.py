"""A run of any loop: the session around its steps, the desk between it and the healer, what can be done to it, where it is asked to go."""
