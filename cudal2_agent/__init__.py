"""The installed package: each folder beside this file is a link to the folder of that name at the repository's root."""
