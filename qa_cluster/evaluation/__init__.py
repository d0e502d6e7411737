"""How good answers are: question sets, measures taken on them, intervals and calibration. Needs no cluster."""
