"""Loading: names, hubs, folders and files of weights, checked before anything is built from them."""
