"""What leaves a run for people: figures for the trackers they use, alerts for wherever they read them."""
