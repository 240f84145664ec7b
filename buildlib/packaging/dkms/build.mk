# Builds the modules at the current folder and puts them into it, where dkms expects them. dkms 3.0.10 calls
# this even if tree has failed. SYMBOLS is the file for the versions of our exports: a module from
# elsewhere is built against them.
modules:
	test -e .laid-out
	@MAKE@
	mkdir -p $(dir $(SYMBOLS))
	cp Module.symvers $(SYMBOLS)
	find . -mindepth 2 -name '*.ko' -exec mv -t . {} +
