# SPDX-License-Identifier: Apache-2.0
# Spack's recipe, in the tree that it builds: spack repo add TREE/packaging/spack; spack install beringia
import os

from spack.package import *

TREE = os.path.abspath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "..", ".."))


class Beringia(MakefilePackage):
    """One language model, trained on many supercomputers that share no network, filesystem or scheduler."""

    homepage = "file://" + os.path.join(TREE, "README.md")
    git = "file://" + TREE

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=True, description="one site on the ranks of an MPI job")

    depends_on("c", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("gmake", type="build")
    depends_on("curl@7.85:")
    depends_on("gnutls@3.7:")
    depends_on("libmicrohttpd@0.9.73:")
    depends_on("sqlite@3.35:")
    depends_on("jansson@2.13:")
    depends_on("nettle@3.7:")
    depends_on("pcre2@10.36:")
    depends_on("utf8proc@2.5:")
    depends_on("mpi", when="+mpi")

    def settings(self, spec, prefix):
        """What make is told, for building and for installing alike: other words would build all of it again."""
        mpicc = spec["mpi"].mpicc if spec.satisfies("+mpi") else "no-mpicc"
        return [f"PREFIX={prefix}", f"CC={spack_cc}", f"MPICC={mpicc}", "VARIANT=release"]

    def build(self, spec, prefix):
        make("all", *self.settings(spec, prefix))

    def install(self, spec, prefix):
        make("install", *self.settings(spec, prefix))

    def setup_run_environment(self, env):
        env.prepend_path("LD_LIBRARY_PATH", self.prefix.lib)
