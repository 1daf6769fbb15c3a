-- SPDX-License-Identifier: Apache-2.0
-- Beringia for Lmod; beringia.tcl says where it lies.
local root = pathJoin(myFileName():match("(.*)/modulefiles/"), "")
root = root:gsub("/+$", "")
help("One language model, trained on many supercomputers: beringia --help, man beringia")
whatis("Beringia " .. myModuleVersion() .. ": one language model, trained on many supercomputers")
conflict("beringia")
prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("LD_LIBRARY_PATH", pathJoin(root, "lib"))
prepend_path("PKG_CONFIG_PATH", pathJoin(root, "lib/pkgconfig"))
prepend_path("PYTHONPATH", pathJoin(root, "lib/python"))
setenv("BERINGIA_ROOT", root)
