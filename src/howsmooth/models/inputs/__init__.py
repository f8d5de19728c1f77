"""Inputs: texts, token ids, sentences and pictures, as a model reads them."""
