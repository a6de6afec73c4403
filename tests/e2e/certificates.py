"""Certificates for tests, made with the openssl command line."""

import os
import subprocess
import time


def _openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.PIPE)


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder, name="test authority"):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.certificate = os.path.join(folder, "ca.pem")
        self.key = os.path.join(folder, "ca.key")
        self.made = 0
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                 "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE", "-keyout", self.key,
                 "-out", self.certificate)

    def issue(self, common_name, hosts=("localhost",), days=2, seconds=None):
        """The paths of a certificate and its key, which is good for so many days, or seconds from now."""
        self.made += 1
        stem = os.path.join(self.folder, str(self.made))
        with open(stem + ".ext", "w") as file:
            names = [f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in hosts]
            file.write("subjectAltName=" + ",".join(names) + "\n")
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
                 f"/CN={common_name}", "-keyout", stem + ".key", "-out", stem + ".csr")
        if seconds is not None:
            self._sign_for_seconds(stem, seconds)
            return stem + ".pem", stem + ".key"
        _openssl("x509", "-req", "-in", stem + ".csr", "-CA", self.certificate, "-CAkey", self.key, "-set_serial",
                 str(1000 + self.made), "-days", str(days), "-extfile", stem + ".ext", "-out", stem + ".pem")
        return stem + ".pem", stem + ".key"

    def _sign_for_seconds(self, stem, seconds):
        with open(stem + ".cnf", "w") as file:
            file.write(f"[ca]\ndefault_ca=d\n[d]\ndatabase={stem}.index\nnew_certs_dir={self.folder}\nserial={stem}.serial\n"
                       "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n")
        with open(stem + ".index", "w"):
            pass
        with open(stem + ".serial", "w") as file:
            file.write(f"{0x1000 + self.made:X}\n")
        begin, end = (time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + at)) for at in (-60, seconds))
        _openssl("ca", "-batch", "-notext", "-config", stem + ".cnf", "-in", stem + ".csr", "-cert", self.certificate,
                 "-keyfile", self.key, "-startdate", begin, "-enddate", end, "-extfile", stem + ".ext", "-out", stem + ".pem")


def install(pair, certificate, key):
    """Puts a pair in the place of another, file by file, as renewals do."""
    for source, target in zip(pair, (certificate, key)):
        with open(source, "rb") as file:
            text = file.read()
        with open(target + ".new", "wb") as file:
            file.write(text)
        os.replace(target + ".new", target)


def read(path):
    with open(path, "rb") as file:
        return file.read()
