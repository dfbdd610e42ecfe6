"""Certificates of a CA of the test's own."""

import subprocess

from harness.job import check


def authority(directory, name):
    """A CA; certificates of it are made by `certify`."""
    directory.mkdir(exist_ok=True)
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    openssl(directory, f"req -x509 {key} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem")


def certify(directory, authority, name, alternative=None, days=2, usage="serverAuth,clientAuth"):
    """A certificate for that name, as a server's and a client's."""
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    (directory / "extensions").write_text(f"subjectAltName=DNS:{alternative or name}\nextendedKeyUsage={usage}\n")
    openssl(directory, f"req {key} -subj /CN={name} -keyout {name}.key -out {name}.csr")
    openssl(directory, f"x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days {days} -extfile extensions -out {name}.pem")
    (directory / f"{name}.key").chmod(0o600)


def openssl(directory, words):
    run = subprocess.run(["openssl", *words.split()], cwd=directory, capture_output=True, text=True)
    check(run.returncode == 0, f"openssl {words}: {run.stderr}")
