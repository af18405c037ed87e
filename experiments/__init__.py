"""The paper's numerical section, reproduced with public names only, beside the library's own methods."""
