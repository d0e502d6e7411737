"""What a reader's answers are worth: scores, calibration, thresholds, time; the reference to compare with."""
