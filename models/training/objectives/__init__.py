"""The losses of training: the loss of the labels, and the distance to the outputs of a teacher."""
