# Builds the modules in the current folder, where dkms expects them. dkms 3.0.10 runs this file even if the
# script "tree" has failed, so the file .laid-out must exist. SYMBOLS is the file for the versions of our
# exported symbols. Other modules are built against these versions.
modules:
	test -e .laid-out
	@MAKE@
	mkdir -p $(dir $(SYMBOLS))
	cp Module.symvers $(SYMBOLS)
	find . -mindepth 2 -name '*.ko' -exec mv -t . {} +
