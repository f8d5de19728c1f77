"""Where inputs live: discrete probability measures and the distances between them."""
