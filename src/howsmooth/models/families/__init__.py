"""Readers of families: parameters of Hugging Face modules as attention layers in closed form."""
