"""What a step of the training makes smaller: losses of labels, and of the distance to a teacher's outputs."""
