"""Which transformers: Hugging Face weights as maps. The only room that imports transformers."""
