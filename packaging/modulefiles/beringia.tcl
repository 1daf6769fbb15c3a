#%Module1.0
# SPDX-License-Identifier: Apache-2.0
# Beringia for Environment Modules. It lies in modulefiles/beringia/VERSION of the folder that it speaks of, so the
# folder may be moved: module use FOLDER/modulefiles; module load beringia. man finds its pages beside bin/ by itself.
set version [file tail $ModulesCurrentModulefile]
set root    [file dirname [file dirname [file dirname [file normalize $ModulesCurrentModulefile]]]]

proc ModulesHelp { } {
    puts stderr "One language model, trained on many supercomputers: beringia --help, man beringia"
}
module-whatis "Beringia $version: one language model, trained on many supercomputers"
conflict      beringia
prepend-path  PATH            $root/bin
prepend-path  LD_LIBRARY_PATH $root/lib
prepend-path  PKG_CONFIG_PATH $root/lib/pkgconfig
prepend-path  PYTHONPATH      $root/lib/python
setenv        BERINGIA_ROOT   $root
