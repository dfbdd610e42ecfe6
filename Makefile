# ftd. `make` builds, `make demo` shows, `make test` proves, `make install PREFIX=…` installs.

CARGO  ?= cargo
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
DESTDIR ?=
# cargo's own variable, so that everybody can keep build results where they like.
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR

# Where scripts/install-deps.sh puts the MPIs, and the etcd, that come as wheels.
mpis      := $(or $(FTD_TEST_PREFIX),/var/lib/ftd-test)
release   := $(CARGO_TARGET_DIR)/release
version   := $(shell sed -n '/workspace.package/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# make, the shell lines below and pkg-config take a blank for the end of a name.
ifneq ($(words $(PREFIX)) $(words $(DESTDIR)),$(if $(PREFIX),1,0) $(if $(DESTDIR),1,0))
$(error PREFIX and DESTDIR may hold no blanks (now: '$(PREFIX)' '$(DESTDIR)'): name another directory)
endif
# An unset variable of somebody's script would install into the root directory.
ifeq ($(strip $(PREFIX)),)
$(error PREFIX is empty: name a directory (PREFIX=/ is the root itself))
endif
# Absolute: ftd-client.pc names it, and programs find the library by it.
prefix    := $(abspath $(PREFIX))
bindir     = $(DESTDIR)$(prefix)/bin
libdir     = $(DESTDIR)$(prefix)/lib
libexecdir = $(DESTDIR)$(prefix)/libexec/ftd
includedir = $(DESTDIR)$(prefix)/include
mandir     = $(DESTDIR)$(prefix)/share/man
unitdir    = $(DESTDIR)$(prefix)/lib/systemd/system
sharedir   = $(DESTDIR)$(prefix)/share/ftd
bashdir    = $(DESTDIR)$(prefix)/share/bash-completion/completions
zshdir     = $(DESTDIR)$(prefix)/share/zsh/site-functions
docdir     = $(DESTDIR)$(prefix)/share/doc/ftd

.PHONY: build demo test check licences subjects specification documented rooms scenarios sim soak bench install uninstall clean

build:
	scripts/install-deps.sh build
	$(CARGO) build --release --workspace

demo:
	scripts/install-deps.sh demo
	$(CARGO) build --release --workspace
	$(PYTHON) scripts/demo.py

# In the order in which a mistake shows up fastest.
test:
	scripts/install-deps.sh test
	$(MAKE) --no-print-directory check
	FT_TEST_OMPI5=$(mpis)/openmpi5 FT_TEST_MPICH5=$(mpis)/mpich5 FT_TEST_IMPI=$(mpis)/impi \
		FT_TEST_ETCD35=$(mpis)/etcd35/bin/etcd CARGO="$(CARGO)" $(PYTHON) scripts/crates.py --release
	$(MAKE) --no-print-directory scenarios

check: licences subjects specification documented rooms
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

licences:
	$(PYTHON) scripts/licences.py

subjects:
	$(PYTHON) scripts/subjects.py

# What the document promises and the tests that it names know each other.
specification:
	$(PYTHON) scripts/specification.py

# The numbers of the documents are the code's.
documented:
	$(PYTHON) scripts/documented.py

# No files of ftd-core, ft-agent, ftd or ft-ship import each other in a circle, and their functions fit on a screen.
rooms:
	$(PYTHON) scripts/rooms.py

scenarios:
	$(PYTHON) tests/run.py $(TESTS)

# Random runs of the shipped agents in a simulated cluster, as many of each kind; a seed that fails is shortened and told.
SEEDS ?= 100000
sim:
	$(CARGO) run --release --package ft-simulation --bin ft-sim -- --total $(SEEDS) --threads 2

# The full product of tests/matrix.toml, and random failures at random moments.
soak:
	scripts/install-deps.sh test
	$(CARGO) build --release --workspace
	$(PYTHON) tests/run.py --soak $(TESTS)

bench:
	scripts/install-deps.sh test
	$(CARGO) build --release --workspace
	$(PYTHON) benches/run.py $(BENCHES)

# Installs what `make` built; builds nothing itself, so that it can run as root after an ordinary user's build.
install:
	@for file in ftd ftrun ftctl ft-agent ft-shepherd ft-pmix ft-ship libft_preload.so libft_slurm.so libftd_client.so libftd_client.a; do \
		if [ ! -e "$(release)/$$file" ]; then \
			echo "make install: $(release)/$$file is not there: this installs what \`make\` has built, so run \`make\` first" >&2; \
			exit 1; \
		fi; \
	done
	install -d $(bindir) $(libdir)/pkgconfig $(libexecdir) $(includedir) $(mandir)/man1 $(mandir)/man3 $(mandir)/man5 $(mandir)/man8
	install -d $(unitdir) $(sharedir)/python
	install -d $(docdir)/examples/heat2d $(docdir)/examples/montecarlo $(docdir)/examples/walk $(docdir)/examples/containers
	install -m 755 $(release)/ftrun $(release)/ftctl $(release)/ftd $(bindir)/
	install -m 755 $(release)/ft-agent $(release)/ft-shepherd $(release)/ft-pmix $(release)/ft-ship $(libexecdir)/
	install -m 755 $(release)/libft_preload.so $(libexecdir)/
	install -m 755 $(release)/libft_slurm.so $(libexecdir)/ft_slurm.so
	install -m 755 $(release)/libftd_client.so $(libdir)/libftd_client.so.0
	strip --strip-unneeded $(libdir)/libftd_client.so.0
	ln -sf libftd_client.so.0 $(libdir)/libftd_client.so
	install -m 644 $(release)/libftd_client.a $(libdir)/
	objcopy --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd $(libdir)/libftd_client.a
	install -m 644 ftd-client/include/ft.h $(includedir)/
	install -m 644 ftd-client/fortran/ft.f90 $(includedir)/
	install -m 644 ftd-client/python/ftd.py $(sharedir)/python/
	sed -e 's|@PREFIX@|$(prefix)|' -e 's|@VERSION@|$(version)|' ftd-client/ftd-client.pc.in > $(libdir)/pkgconfig/ftd-client.pc
	for page in docs/man/*.[1358]; do \
		if [ -e "$$page" ]; then install -m 644 "$$page" $(mandir)/man$${page##*.}/ || exit 1; fi; \
	done
	install -m 644 docs/ftctl.schema.json docs/guide.md docs/admin.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT $(docdir)/
	install -d $(bashdir) $(zshdir)
	for program in ftrun ftctl; do \
		install -m 644 deploy/completion/$$program.bash $(bashdir)/$$program && \
		install -m 644 deploy/completion/_$$program $(zshdir)/ || exit 1; \
	done
	sed -e 's|@BINDIR@|$(prefix)/bin|' deploy/systemd/ftd.service.in > $(unitdir)/ftd.service
	chmod 644 $(unitdir)/ftd.service
	install -m 644 deploy/ftd.toml $(sharedir)/
	install -m 644 examples/README.md $(docdir)/examples/
	install -m 644 examples/heat2d/heat2d.c examples/heat2d/heat2d.f90 examples/heat2d/heat2d.py $(docdir)/examples/heat2d/
	install -m 644 examples/montecarlo/montecarlo.c $(docdir)/examples/montecarlo/
	install -m 644 examples/walk/walk.py $(docdir)/examples/walk/
	install -m 644 examples/containers/particles.cpp examples/containers/particles.f90 examples/containers/blocks.f90 $(docdir)/examples/containers/

# Takes away what `install` puts there, and the directories that are ftd's own. Jobs that run from there end with their next failure.
uninstall:
	rm -f $(bindir)/ftrun $(bindir)/ftctl $(bindir)/ftd $(unitdir)/ftd.service $(libdir)/libftd_client.so.0 $(libdir)/libftd_client.so $(libdir)/libftd_client.a $(libdir)/pkgconfig/ftd-client.pc
	rm -f $(includedir)/ft.h $(includedir)/ft.f90
	for page in docs/man/*.[1358]; do rm -f $(mandir)/man$${page##*.}/$${page##*/}; done
	rm -f $(bashdir)/ftrun $(bashdir)/ftctl $(zshdir)/_ftrun $(zshdir)/_ftctl
	rm -rf $(libexecdir) $(docdir) $(sharedir)

clean:
	$(CARGO) clean
