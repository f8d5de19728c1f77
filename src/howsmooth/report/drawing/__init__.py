"""What charts share: colours, axes, panels, tables, and the words for laws and windows."""
