//! How hooks get in front of the driver's functions. `Preload` is the one that ships: it changes no code and no table of anybody, it only answers
//! lookups (`resolve`). A second back end (feature `frida`) patches the driver's functions themselves, for modules that escape the lookups.
