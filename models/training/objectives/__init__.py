"""The losses of training: of the labels, and of the distance to the outputs of a teacher."""
