"""One node in its cluster: the drivers of the quorum, of the controller and of membership."""
