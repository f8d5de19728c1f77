"""What an adversary gets: perturbations of given size that move the output most, beside what the constant predicts."""
