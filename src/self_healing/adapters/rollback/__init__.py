"""Earlier states of a run: taken, judged and kept, returned to inside the loop or by entering it anew, gone on from by a later process."""
