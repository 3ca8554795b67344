"""The passes over the data on several threads of one machine."""
