# Builds the modules at the current folder and puts them into it, where dkms expects them.
modules:
	@MAKE@
	find . -mindepth 2 -name '*.ko' -exec mv -t . {} +
