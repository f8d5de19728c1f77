"""Parts of a model as its own modules compute them, differentiated by autograd: for families without a closed form."""
