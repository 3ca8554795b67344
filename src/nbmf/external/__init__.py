"""Bridges to other packages' data structures, each in a module that is imported only by who wants it."""
