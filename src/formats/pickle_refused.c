#include "core/fail.h"
#include "formats/pickle_machine.h"

/* The lines behind GLOBAL and INST: module and name, as far as they go. */
static bp_status refuse_named(const bp_pickle_machine *m)
{
    const char *module = (const char *)m->c.at, *name = "";
    size_t left = (size_t)(m->c.end - m->c.at), module_bytes = 0, name_bytes = 0;
    while (module_bytes < left && module_bytes < 60 && module[module_bytes] != '\n')
        module_bytes++;
    if (module_bytes < left && module[module_bytes] == '\n') {
        name = module + module_bytes + 1;
        while (module_bytes + 1 + name_bytes < left && name_bytes < 60 && name[name_bytes] != '\n')
            name_bytes++;
    }
    return bp_pickle_fail(&m->c, "names the global %.*s.%.*s; a snapshot is plain data, nothing else is read",
                          (int)module_bytes, module, (int)name_bytes, name);
}

/* STACK_GLOBAL: the two strings on top. */
static bp_status refuse_stacked(const bp_pickle_machine *m)
{
    BP_TRY(bp_pickle_need(m, 2));
    const bp_pickle pickle = {.data = m->c.begin,
                              .bytes = (size_t)(m->c.end - m->c.begin),
                              .containers = m->containers.memory,
                              .items = m->items.memory};
    const bp_pickle_ref *top = (const bp_pickle_ref *)m->stack.memory + m->stack.count;
    bp_pickle_value module = bp_pickle_get(&pickle, top[-2]), name = bp_pickle_get(&pickle, top[-1]);
    bool known = module.kind == BP_PICKLE_STRING && name.kind == BP_PICKLE_STRING;
    return bp_pickle_fail(&m->c, "names the global %.*s.%.*s; a snapshot is plain data, nothing else is read",
                          known ? (int)(module.count < 60 ? module.count : 60) : 1, known ? module.text : "?",
                          known ? (int)(name.count < 60 ? name.count : 60) : 1, known ? name.text : "?");
}

bp_status bp_pickle_refuse(const bp_pickle_machine *m, unsigned char opcode)
{
    static const struct {
        unsigned char opcode;
        const char *name, *what;
    } refused[] = {{'R', "REDUCE", "calls a function"},
                   {'b', "BUILD", "builds an object"},
                   {'o', "OBJ", "builds an object"},
                   {0x81, "NEWOBJ", "builds an object"},
                   {0x92, "NEWOBJ_EX", "builds an object"},
                   {0x82, "EXT1", "names a registered global"},
                   {0x83, "EXT2", "names a registered global"},
                   {0x84, "EXT4", "names a registered global"},
                   {'P', "PERSID", "names an object elsewhere"},
                   {'Q', "BINPERSID", "names an object elsewhere"},
                   {0x8f, "EMPTY_SET", "makes a set"},
                   {0x90, "ADDITEMS", "fills a set"},
                   {0x91, "FROZENSET", "makes a set"},
                   {0x96, "BYTEARRAY8", "makes an array of bytes"},
                   {0x97, "NEXT_BUFFER", "takes a buffer from elsewhere"},
                   {0x98, "READONLY_BUFFER", "takes a buffer from elsewhere"}};
    if (opcode == 'c' || opcode == 'i')
        return refuse_named(m);
    if (opcode == 0x93)
        return refuse_stacked(m);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].opcode == opcode)
            return bp_pickle_fail(&m->c, "%s %s; a snapshot is plain data, nothing else is read", refused[i].name,
                                  refused[i].what);
    }
    return bp_pickle_fail(&m->c, "0x%02x is no opcode of plain data in protocols %d to %d", opcode,
                          BP_PICKLE_LEAST_PROTOCOL, BP_PICKLE_MOST_PROTOCOL);
}
