"""The parts of a model around attention: feed-forward parts, blocks, embeddings, output heads, maps of many layers."""
