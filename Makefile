# ftd. `make` builds, `make demo` shows, `make test` proves, `make install PREFIX=…` installs.

CARGO  ?= cargo
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
DESTDIR ?=
# cargo's own variable, so that everybody can keep build results where they like.
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR

# Where scripts/install-deps.sh puts the MPIs that come as wheels.
mpis      := $(or $(FTD_TEST_PREFIX),/var/lib/ftd-test)
release   := $(CARGO_TARGET_DIR)/release
version   := $(shell sed -n '/workspace.package/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
bindir     = $(DESTDIR)$(PREFIX)/bin
libdir     = $(DESTDIR)$(PREFIX)/lib
libexecdir = $(DESTDIR)$(PREFIX)/libexec/ftd
includedir = $(DESTDIR)$(PREFIX)/include
mandir     = $(DESTDIR)$(PREFIX)/share/man

.PHONY: build demo test check licences scenarios soak bench install clean

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
	$(CARGO) build --release --workspace
	FT_TEST_OMPI5=$(mpis)/openmpi5 FT_TEST_MPICH5=$(mpis)/mpich5 FT_TEST_IMPI=$(mpis)/impi $(CARGO) test --workspace
	$(MAKE) --no-print-directory scenarios

check: licences
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

licences:
	$(PYTHON) scripts/licences.py

scenarios:
	$(PYTHON) tests/run.py $(TESTS)

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
	install -d $(bindir) $(libdir)/pkgconfig $(libexecdir) $(includedir) $(mandir)/man1 $(mandir)/man3
	install -m 755 $(release)/ftrun $(bindir)/
	install -m 755 $(release)/ft-agent $(release)/ft-shepherd $(release)/ft-pmix $(libexecdir)/
	install -m 755 $(release)/libft_preload.so $(libexecdir)/
	install -m 755 $(release)/libftd_client.so $(libdir)/libftd_client.so.0
	ln -sf libftd_client.so.0 $(libdir)/libftd_client.so
	install -m 644 $(release)/libftd_client.a $(libdir)/
	install -m 644 ftd-client/include/ft.h $(includedir)/
	install -m 644 ftd-client/fortran/ft.f90 $(includedir)/
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@INCLUDEDIR@|$(PREFIX)/include|' -e 's|@LIBDIR@|$(PREFIX)/lib|' \
		-e 's|@VERSION@|$(version)|' ftd-client/ftd-client.pc.in > $(libdir)/pkgconfig/ftd-client.pc
	for page in docs/man/*.[13]; do \
		if [ -e "$$page" ]; then install -m 644 "$$page" $(mandir)/man$${page##*.}/ || exit 1; fi; \
	done

clean:
	$(CARGO) clean
