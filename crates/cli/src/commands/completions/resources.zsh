# Completes the names of resources, else files: the path of a file is a name, too.
_leasehold_resources() {
    local -a names
    names=("${(@f)$(_call_program resources leasehold complete-resources ${(q)PREFIX} 2> /dev/null)}")
    names=(${names:#})
    compadd -a names || _files
}
