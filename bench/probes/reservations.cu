// Where small reservations stand when an address is wanted.
// nvcc -O1 -arch=sm_90 -o reservations reservations.cu -lcuda && ./reservations
#include <cuda.h>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#include <cstdint>
#define CK(x) do{CUresult r=(x); if(r){const char*s;cuGetErrorName(r,&s);printf("%s -> %d %s\n",#x,r,s);} }while(0)
static const size_t PG=2<<20;
__global__ void sum(const unsigned long long*p,size_t n,unsigned long long*o){unsigned long long s=0;for(size_t i=blockIdx.x*(size_t)blockDim.x+threadIdx.x;i<n;i+=(size_t)gridDim.x*blockDim.x)s+=p[i];atomicAdd(o,s);}
void tryhint(const char*what,uint64_t at,size_t bytes,size_t align){CUdeviceptr got=0;CUresult r=cuMemAddressReserve(&got,bytes,align,at,0);printf("%-46s align %zu: rc %d asked %llx got %llx %s\n",what,align,r,(unsigned long long)at,(unsigned long long)got,got==at?"SAME":"other");if(!r)cuMemAddressFree(got,bytes);}
bool freehere(uint64_t at,size_t n){void*p=mmap((void*)at,n,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED_NOREPLACE,-1,0); bool ok=p==(void*)at; if(p!=MAP_FAILED)munmap(p,n); return ok;}
int main(){ setbuf(stdout,0); cuInit(0); CUdevice dev; cuDeviceGet(&dev,0); CUcontext ctx; cuDevicePrimaryCtxRetain(&ctx,dev); cuCtxSetCurrent(ctx);
 CUdeviceptr arena; CK(cuMemAddressReserve(&arena,1ull<<40,PG,0,0)); printf("arena %llx\n",arena);
 for(size_t z: {64ull<<20,1ull<<30,16ull<<30,256ull<<30,1024ull<<30}){ CUdeviceptr b; CK(cuMemAddressReserve(&b,z,PG,0,0)); CK(cuMemAddressFree(b,z)); printf("zone of %zu MiB at %llx: free for the kernel %d\n",z>>20,b,freehere(b,8*PG)); tryhint("  hint at its start",b,8*PG,PG); tryhint("  hint at its start",b,8*PG,0); tryhint("  hint inside",b+64*PG>b+z?b:b+16*PG,8*PG,0);
   if(freehere(b+8*PG,8*PG)){ void*p=mmap((void*)(b+8*PG),8*PG,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED_NOREPLACE,-1,0); tryhint("  hint with host memory right behind",b,8*PG,0); tryhint("  hint with host memory right behind",b,8*PG,PG);
     CUresult r=cuMemHostRegister(p,8*PG,CU_MEMHOSTREGISTER_PORTABLE); printf("  register rc %d\n",r); tryhint("  hint with registered memory right behind",b,8*PG,0); cuMemHostUnregister(p); munmap(p,8*PG);} }
 { char*m=(char*)mmap(0,1ull<<30,PROT_NONE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE,-1,0); uint64_t a=((uint64_t)m+PG-1)/PG*PG; munmap(m,1ull<<30); tryhint("hint in an mmap hole",a,8*PG,0); tryhint("hint in an mmap hole",a,8*PG,PG);}
 for(uint64_t a: {0x200000000000ull,0x300000000000ull,0x400000000000ull,0x500000000000ull,0x20000000000ull,0x30000000000ull}) { tryhint("hint at a round address",a,8*PG,0); tryhint("hint at a round address",a+8*PG,8*PG,PG);
   void*p=mmap((void*)(a+8*PG),8*PG,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED_NOREPLACE,-1,0); if(p==(void*)(a+8*PG)){memset(p,1,8*PG); CUresult r=cuMemHostRegister(p,8*PG,CU_MEMHOSTREGISTER_PORTABLE); CUdeviceptr v=0; CUresult r2=cuMemAddressReserve(&v,8*PG,0,a,0); printf("  register rc %d, prefix rc %d %s\n",r,r2,v==a?"SAME":"other");
     if(v==a){ CUmemAllocationProp pr={}; pr.type=CU_MEM_ALLOCATION_TYPE_PINNED; pr.location.type=CU_MEM_LOCATION_TYPE_DEVICE; CUmemGenericAllocationHandle h; CK(cuMemCreate(&h,8*PG,&pr,0)); CK(cuMemMap(v,8*PG,0,h,0)); CUmemAccessDesc ad={}; ad.location.type=CU_MEM_LOCATION_TYPE_DEVICE; ad.flags=CU_MEM_ACCESS_FLAGS_PROT_READWRITE; CK(cuMemSetAccess(v,8*PG,&ad,1)); CK(cuMemsetD8(v,2,8*PG)); unsigned long long*o; CUdeviceptr od; CK(cuMemAlloc(&od,8)); CK(cuMemsetD32(od,0,2)); sum<<<64,256>>>((unsigned long long*)v,16*PG/8,(unsigned long long*)od); unsigned long long res=0; CK(cuMemcpyDtoH(&res,od,8)); printf("  view across the border: %s\n",res==8*PG/8*0x0101010101010101ull+8*PG/8*0x0202020202020202ull?"right":"WRONG"); cuMemUnmap(v,8*PG); cuMemRelease(h); cuMemAddressFree(v,8*PG);} cuMemHostUnregister(p); munmap(p,8*PG);} else printf("  mmap behind failed\n"); }
 return 0;}
